"""Analysis as a Job of the cluster, where the archive is near and nobody's laptop reads traces.

    job = AnalysisJob(manifest="s3://traces/ml/bert/0/<id>/manifest.json", results="s3://results", namespace="ml")
    finished = run(api, job, say)            # made, or found again, and followed to its end

`build` makes the object (pure), `standing` says how far it is from what was read (pure), `submitted` does the reading.
"""

from __future__ import annotations

from sameshot.steps.on_cluster.build import AnalysisJob, job_of, namespace_of
from sameshot.steps.on_cluster.standing import Finished
from sameshot.steps.on_cluster.submitted import follow, run, submit

__all__ = ["AnalysisJob", "Finished", "follow", "job_of", "namespace_of", "run", "submit"]
