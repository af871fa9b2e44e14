"""Deep metric learning with mixup."""
