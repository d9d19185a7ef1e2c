// A program of C++ that uses a model "m" whose definitions are compiled as C.
#include "m.h"

#include <cmath>
#include <cstdio>

int main()
{
    anytime_m_prediction now;
    anytime_m_begin(&now);
    const double values[ANYTIME_M_FEATURES] = {1.0, 2.0, 3.0, 4.0};
    for (size_t group = 0; group < ANYTIME_M_GROUPS; group++)
        if (anytime_m_width(group) == 0 || anytime_m_add(&now, group, values) != 0)
            return 1;
    double told[ANYTIME_M_OUTPUTS];
    const int prefix = anytime_m_answer(&now, INFINITY, told);
    std::printf("%d %.17g\n", prefix, told[0]);
}
