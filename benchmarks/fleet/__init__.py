"""How Toolscale does with a fleet: storms of events, resyncs of everything, a whole catalogue at once, replicas."""
