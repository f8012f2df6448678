"""How a run is started, kept and finished."""
