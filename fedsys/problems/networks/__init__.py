"""Problems that train a neural network on a data set."""
