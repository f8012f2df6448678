"""The processes of a run: how they start, meet, fail and stop."""
