package main

import "otel-smol.invalid/stack/collector/parts"

func main() { parts.Run("otelcol-contrib") }
