/* Does what the lines on standard input say with a model named "m": begin | add GROUP VALUE... | answer BUDGET |
 * best BUDGET | names | level GROUP FEATURE CATEGORY | errors. */
#define ANYTIME_M_IMPLEMENTATION
#include "m.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void)
{
    static char line[65536];
    anytime_m_prediction now;
    anytime_m_begin(&now);
    while (fgets(line, sizeof line, stdin)) {
        char *at = strchr(line, ' ');
        if (!strncmp(line, "begin", 5)) {
            anytime_m_begin(&now);
        } else if (!strncmp(line, "add", 3)) {
            ANYTIME_REAL values[ANYTIME_M_FEATURES] = {0};
            const size_t group = strtoul(at, &at, 10);
            for (size_t i = 0; i < anytime_m_width(group); i++)
                values[i] = (ANYTIME_REAL)strtod(at, &at);
            printf("%d\n", anytime_m_add(&now, group, values));
        } else if (!strncmp(line, "answer", 6) || !strncmp(line, "best", 4)) {
            ANYTIME_REAL told[ANYTIME_M_OUTPUTS];
            const double budget = strtod(at, NULL);
            printf("%d", line[0] == 'b' ? anytime_m_answer_best(&now, budget, told) : anytime_m_answer(&now, budget, told));
            for (size_t r = 0; r < ANYTIME_M_OUTPUTS; r++)
                printf(" %.17g", (double)told[r]);
            puts("");
#ifdef ANYTIME_M_LEVELS
        } else if (!strncmp(line, "level", 5)) {
            const size_t group = strtoul(at, &at, 10), feature = strtoul(at, &at, 10);
            at[strcspn(at, "\n")] = 0;
            printf("%d\n", anytime_m_level(group, feature, at + 1));
#endif
        } else if (!strncmp(line, "errors", 6)) {
            for (int prefix = 0; prefix <= ANYTIME_M_STEPS; prefix++)
                printf("%.17g\n", anytime_m_cv_errors[prefix]);
        } else {
            puts(anytime_m_model);
            puts(anytime_m_version);
            puts(anytime_m_cost_unit);
            for (size_t g = 0; g < ANYTIME_M_GROUPS; g++)
                puts(anytime_m_groups[g]);
            for (size_t r = 0; r < ANYTIME_M_OUTPUTS; r++)
                puts(anytime_m_outputs[r]);
        }
    }
    return 0;
}
