"""Ways to train over ranks; synchronous gradient descent is the first."""
