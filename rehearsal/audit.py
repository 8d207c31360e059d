from trainer_core.audit import *
