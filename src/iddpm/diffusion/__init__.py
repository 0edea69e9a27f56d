"""The mathematics: schedules, predictions, objectives, samplers and the bound. Tensors in, tensors out."""
