"""Write docs/settings.md and docs/settings.zh.md from the settings classes and the dictionary (`make docs`)."""

from pathlib import Path

from mingyue.cli.help import localized_help
from mingyue.config.reference import reference
from mingyue.files import write_text_atomically

if __name__ == "__main__":
    write_text_atomically(Path(__file__).with_name("settings.md"), reference())
    write_text_atomically(Path(__file__).with_name("settings.zh.md"), reference("zh", localized_help))
