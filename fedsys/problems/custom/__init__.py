"""Problems defined by a user's functions."""
