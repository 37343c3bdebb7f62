"""The spans, one file each: what is read from the ledger when one ends, and what is told to the metrics.

`chat`, `execute_tool` and `invoke_agent` go through `opentelemetry-util-genai`; steps, plans and everything named
`smolagents.*` directly through the API. No span is current longer than a call of ours lasts: whoever runs
something inside one attaches its `context` around it.
"""
