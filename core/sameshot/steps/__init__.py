"""The engine-neutral steps: what every workflow plugin wraps, and `sameshot step NAME` runs in a container.

    result = capture(CaptureRequest(address="local:bert", request_key="…"))   # one capture, waited for
    for shard in result.shards: analyze_rank(result.manifest_uri, shard, results_uri)
    reduce(result.manifest_uri, results_uri)                                  # summary, report, a row of history
    compare(result.manifest_uri, results_uri, threshold=0.1)                  # against the series' previous capture
    cancel(address, capture_id)

Values go in, small values come out (`results`); what an engine calls its parts stands in `contract`. Importing this
package is light (no grpc, numpy or pyarrow): schedulers import plugins all day.
"""

from __future__ import annotations
