"""What a trained model is: features, predictor, target and calibration in one bundle of files."""
