"""What a run will cost before it is launched: a cost model, and the pipeline as discrete events."""
