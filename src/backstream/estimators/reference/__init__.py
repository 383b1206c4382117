"""What the recursive estimators are compared with."""
