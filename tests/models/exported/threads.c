/* One thread adds the groups of a model "m", values all 1, again and again; another asks all the while. Every answer has
 * to be that of the prefix which it names. Prints how many answers each prefix gave; ends with 1 where one was wrong. */
#define ANYTIME_M_IMPLEMENTATION
#include "m.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

enum { ROUNDS = 4000 };

static anytime_m_prediction predictions[ROUNDS];
static atomic_int adding, done, asks;
static atomic_long asked;

static void *add_groups(void *unused)
{
    ANYTIME_REAL ones[ANYTIME_M_FEATURES];
    for (size_t i = 0; i < ANYTIME_M_FEATURES; i++)
        ones[i] = 1;
    for (int round = 0; round < ROUNDS; round++) {
        atomic_store(&adding, round);
        for (size_t group = 0; group < ANYTIME_M_GROUPS; group++) {
            anytime_m_add(&predictions[round], group, ones);
            /* In some rounds an answer begins between any two groups, however the machine shares its time. */
            for (const long before = asked; round % 4 == 0 && asks && asked < before + 2;)
                sched_yield();
        }
    }
    atomic_store(&done, 1);
    return unused;
}

int main(void)
{
    ANYTIME_REAL right[ANYTIME_M_STEPS + 1][ANYTIME_M_OUTPUTS], told[ANYTIME_M_OUTPUTS];
    long answers[ANYTIME_M_STEPS + 1] = {0};
    pthread_t thread;
    add_groups(NULL);
    for (int prefix = 0; prefix <= ANYTIME_M_STEPS; prefix++)
        if (anytime_m_answer(&predictions[0], anytime_m_costs[prefix], right[prefix]) != prefix)
            return 1;
    atomic_store(&done, 0);
    memset(predictions, 255, sizeof predictions); /* values that no answer may be made of */
    for (int round = 0; round < ROUNDS; round++)
        anytime_m_begin(&predictions[round]);
    asks = 1;
    if (pthread_create(&thread, NULL, add_groups, NULL))
        return 1;
    while (!atomic_load(&done)) {
        const int prefix = anytime_m_answer(&predictions[atomic_load(&adding)], INFINITY, told);
        if (prefix < 0)
            return 1;
        for (size_t r = 0; r < ANYTIME_M_OUTPUTS; r++)
            if (told[r] != right[prefix][r])
                return 1;
        answers[prefix]++;
        asked++;
    }
    pthread_join(thread, NULL);
    for (int prefix = 0; prefix <= ANYTIME_M_STEPS; prefix++)
        printf("%ld\n", answers[prefix]);
    return 0;
}
