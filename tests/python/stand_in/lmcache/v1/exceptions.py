class IrrecoverableException(Exception):
    pass
