"""A model folder: everything needed to use a model, nothing that executes, loadable on any machine.

    config.json            {"format": 1, "model": {… every field of ModelConfig or EncoderDecoderConfig …}}
    model.safetensors      the weights, under the names of the model's `state_dict()`
    tokenizer.json         the tokenizer
    source_tokenizer.json  the source tokenizer of an encoder-decoder model whose sides have separate vocabularies
    training.json          how it was trained; what generation needs ("starts_with_bos", "begin_id", "unseen"); no
                           local paths; the SHA-256 of the other files

The format version is written into config.json. A version that this program does not know is refused with a reason.
"""

from mingyue.bundle.files import (
    FORMAT,
    add_to_training,
    check_files,
    is_model_folder,
    read_bundle_config,
    read_training,
)
from mingyue.bundle.load import Bundle, load_bundle, open_bundle
from mingyue.bundle.save import save_bundle

__all__ = [
    "FORMAT",
    "Bundle",
    "add_to_training",
    "check_files",
    "is_model_folder",
    "load_bundle",
    "open_bundle",
    "read_bundle_config",
    "read_training",
    "save_bundle",
]
