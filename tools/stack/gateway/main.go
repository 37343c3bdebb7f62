// The collector of ../collector with the load_balancing exporter, for the gateway test. A program of its own: that exporter
// brings the clients of two clouds, twice the size and minutes more to build.
package main

import (
	"github.com/open-telemetry/opentelemetry-collector-contrib/exporter/loadbalancingexporter"

	"otel-smol.invalid/stack/collector/parts"
)

func main() { parts.Run("otelcol-gateway", loadbalancingexporter.NewFactory()) }
