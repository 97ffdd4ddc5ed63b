from epp.model.pins import Pins as Pins  # the kernel promises what its twin does
