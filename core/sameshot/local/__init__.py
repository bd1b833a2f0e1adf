"""Everything on one machine, without Kubernetes: runtime directories, arming, and the processes beside a job."""
