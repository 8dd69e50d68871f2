"""How far numbers are off: in their own unit, and as the share of their variance that is explained."""

from torch import Tensor

from vitreous.metrics.figures import Counts


class RegressionErrors(Counts):
    """R2 is 1 for answers that are all right, and 0 for those that are always the mean."""

    counted = ("images", "total", "squares", "absolute_errors", "squared_errors")
    images, total, squares, absolute_errors, squared_errors = 0, 0.0, 0.0, 0.0, 0.0

    def update(self, predictions: list[dict[str, Tensor]], targets: dict[str, Tensor]) -> None:
        for prediction, truth in zip(predictions, targets["value"].double().tolist(), strict=True):
            error = float(prediction["value"]) - truth
            self.images += 1
            self.total, self.squares = self.total + truth, self.squares + truth**2
            self.absolute_errors += abs(error)
            self.squared_errors += error**2

    def compute(self) -> dict[str, float]:
        spread = self.squares - self.total**2 / self.images
        return {
            "R2": 1 - self.squared_errors / spread if spread > 0 else 0.0,
            "MAE": self.absolute_errors / self.images,
            "RMSE": (self.squared_errors / self.images) ** 0.5,
        }
