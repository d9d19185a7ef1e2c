"""The experiments of Hu, Grubb, Bagnell and Hebert (UAI 2016), and the certificates that go with them."""
