from calc.evaluate import CalcError, evaluate

__all__ = ["CalcError", "evaluate"]
