"""The experiments of the Group-OMP paper (Lozano, Swirszcz and Abe, 2009, section 4)."""
