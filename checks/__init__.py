"""Facts and a workload made into findings, fits and a score. Imports `probe` and nothing else of this project."""
