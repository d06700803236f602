"""What a workload needs, from its model's architecture, and whether a machine has it."""
