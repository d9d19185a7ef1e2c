"""The experiments of Hu, Grubb, Bagnell and Hebert (UAI 2016), and certificates for the same problems."""
