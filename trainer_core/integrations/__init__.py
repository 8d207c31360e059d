"""Where the trainer meets other systems: metrics exporters, and interfaces with stand-ins."""
