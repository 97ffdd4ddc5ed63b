from epp.model.prompts.text_lengths import (
    kind_of as kind_of,
)  # the kernel promises what its twin does
from epp.model.prompts.text_lengths import scaled as scaled
from epp.model.prompts.text_lengths import sizes_between as sizes_between
from epp.model.prompts.text_lengths import spread as spread
