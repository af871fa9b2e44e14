"""Embed photos with a file of `metrix export --onnx`, without torch: numpy, Pillow and onnxruntime.

    python onnx_client.py model.onnx a.jpg b.jpg

prints the cosine of the first photo to each of the others. Rounding matters: the steps below are those of metrix.
"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def read_rgb(path, shrink=None):
    """Decode an image upright, with transparent pixels white."""
    with Image.open(path) as file:
        if shrink is not None:  # a JPEG is decoded at a fraction of its size where that is still large enough
            file.draft(None, (2 * shrink, 2 * shrink))
        image = ImageOps.exif_transpose(file)
        if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        return image.convert("RGB")


def preprocess(path, steps):
    """The input of the network, (channels, height, width), by the steps of the file's description."""
    shrink = next((s["shrink_shorter_side_to_at_most"] for s in steps if "shrink_shorter_side_to_at_most" in s), None)
    image = read_rgb(path, shrink)
    pixels = None
    for step in steps:
        width, height = image.size
        short = min(width, height)
        if side := step.get("shrink_shorter_side_to_at_most"):
            if short > side:  # both sides rounded
                size = (max(1, round(width * side / short)), max(1, round(height * side / short)))
                image = image.resize(size, Image.Resampling.BILINEAR)
        elif side := step.get("resize_shorter_side_to"):  # the longer side truncated, the result rounded to 8 bits
            size = (int(side * width / short), int(side * height / short))
            image = image.resize(size, Image.Resampling.BILINEAR)
        elif size := step.get("crop_centre_to"):  # offsets rounded, half to even, as Python's round does
            left, top = round((width - size[1]) / 2), round((height - size[0]) / 2)
            image = image.crop((left, top, left + size[1], top + size[0]))
        elif size := step.get("resize_to"):
            image = image.convert("L").resize((size[1], size[0]), Image.Resampling.BICUBIC)
        elif mode := step.get("convert_to"):
            image = image.convert("L" if mode == "grey" else "RGB")
        elif "divide_by" in step or "subtract" in step:
            if pixels is None:
                pixels = np.atleast_3d(np.asarray(image, np.float32)).transpose(2, 0, 1)
            value = np.asarray(step.get("divide_by", step.get("subtract")), np.float32).reshape(-1, 1, 1)
            pixels = pixels / value if "divide_by" in step else pixels - value
    return pixels


def embed(session, paths):
    """Unit vectors (n, dim) of image files."""
    about = json.loads(session.get_modelmeta().custom_metadata_map["metrix"])
    images = np.stack([preprocess(path, about["preprocessing"]["steps"]) for path in paths])
    return session.run(None, {"images": images.astype(np.float32)})[0]


if __name__ == "__main__":
    first, *others = embed(onnxruntime.InferenceSession(sys.argv[1]), sys.argv[2:])
    for path, vector in zip(sys.argv[3:], others, strict=True):
        print(f"{first @ vector:.4f} {path}")
