from trainer_core.pictures import *
