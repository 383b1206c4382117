"""Learning the parameters of a model from a stream, against maximum likelihood on the same rows."""
