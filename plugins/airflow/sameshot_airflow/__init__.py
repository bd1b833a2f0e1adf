"""sameshot as an Airflow provider: captures of running training jobs, scheduled, compared and kept.

Each module wraps one of the engine-neutral steps of `sameshot.steps` in Airflow's conventions, and does no more.
"""

from __future__ import annotations

from sameshot import __version__

__all__ = ["__version__"]
