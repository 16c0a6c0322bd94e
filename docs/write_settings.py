"""Write docs/settings.md from the settings classes (`make docs`)."""

from pathlib import Path

from mingyue.config.reference import reference
from mingyue.files import write_text_atomically

if __name__ == "__main__":
    write_text_atomically(Path(__file__).with_name("settings.md"), reference())
