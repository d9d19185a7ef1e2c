// A program of C++ that uses a model "m" whose definitions are compiled as C.
#include "m.h"

#include <cmath>
#include <cstdio>

int main()
{
    anytime_m_prediction now;
    anytime_m_begin(&now);
    double told[ANYTIME_M_OUTPUTS];
    const int prefix = anytime_m_answer(&now, INFINITY, told);
    std::printf("%d %.17g\n", prefix, told[0]);
}
