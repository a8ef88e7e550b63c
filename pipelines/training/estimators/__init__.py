"""What can be trained: linear models, boosting, and foreign estimators by import path."""
