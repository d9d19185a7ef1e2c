"""Pages without a network: charts as SVG, and the style that light, dark, print and narrow screens share."""
