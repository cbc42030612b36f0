"""Pictures: folders of PNG, JPEG and WebP files, NumPy arrays, CIFAR-10 and ImageNet-64, as sequences of values."""

from asterism.training.data.images.modality import Images

__all__ = ["Images"]
