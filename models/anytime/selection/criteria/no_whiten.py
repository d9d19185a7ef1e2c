"""No-whiten: the squared norm of a group's gradient, |b_g|_F^2 (section 5.2)."""

import numpy as np

from anytime.selection.criteria.single import SingleFeature


class GradientNorm(SingleFeature):
    """The sum of the squared gradients of a group's features; it overestimates groups that repeat a good feature."""

    name = "no-whiten"
    combine = np.add
