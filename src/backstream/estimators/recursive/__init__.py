"""The recursive estimators of the paper: samples, weights, sensitivities and scores."""
