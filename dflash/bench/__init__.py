"""The benchmark: trials, pairs, verdicts, reports. It uses the trainer; the trainer never knows."""
