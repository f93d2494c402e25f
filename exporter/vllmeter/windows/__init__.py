"""What happens between two scrapes: cells, jitter bounds, quantiles, peaks, contention and server states (pure)."""
