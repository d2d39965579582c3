/* The largest sum of every column over all windows, for numbers IN, sums SUM and totals TOTAL. Columns are done in
   blocks of a constant size, which stay in registers; the last one begins with `again` columns that the one before has
   done, whose totals do not count twice. */

enum { WINDOWS(BLOCK) = 64 };

TARGET static inline ALWAYS_INLINE void WINDOWS(block)(const IN *const *rows, size_t windows, const size_t *places,
                                                       const size_t width, const size_t size, size_t begin,
                                                       size_t again, SUM *largest, TOTAL *totals) {
    SUM most[WINDOWS(BLOCK)];
    TOTAL total[WINDOWS(BLOCK)] = {0};
    for (size_t c = 0; c < size; c++) most[c] = largest[begin + c];
    for (size_t w = 0; w < windows; w++) {
        SUM sum[WINDOWS(BLOCK)];
        for (size_t c = 0; c < size; c++) sum[c] = rows[w][places[0] + begin + c];
        for (size_t r = 1; r < width; r++)
            for (size_t c = 0; c < size; c++) sum[c] = (SUM)(sum[c] + rows[w + r][places[r] + begin + c]);
        for (size_t c = 0; c < size; c++) most[c] = sum[c] > most[c] ? sum[c] : most[c];
        if (totals)
            for (size_t c = 0; c < size; c++) total[c] += sum[c] > 0 ? sum[c] : 0;
    }
    for (size_t c = 0; c < size; c++) largest[begin + c] = most[c];
    if (totals)
        for (size_t c = again; c < size; c++) totals[begin + c] += total[c];
}

TARGET static inline ALWAYS_INLINE void WINDOWS(of_width)(const IN *const *rows, size_t windows, const size_t *places,
                                                          const size_t width, size_t columns, SUM *largest,
                                                          TOTAL *totals) {
    enum { SIZE = WINDOWS(BLOCK) };
    size_t begin = 0;
    for (; begin + SIZE <= columns; begin += SIZE)
        WINDOWS(block)(rows, windows, places, width, SIZE, begin, 0, largest, totals);
    if (begin < columns && columns >= SIZE)
        WINDOWS(block)(rows, windows, places, width, SIZE, columns - SIZE, begin + SIZE - columns, largest, totals);
    else if (begin < columns)
        WINDOWS(block)(rows, windows, places, width, columns, 0, 0, largest, totals);
}

TARGET static void WINDOWS(windows)(const IN *const *rows, size_t windows, const size_t *places, size_t width,
                                    size_t columns, SUM *largest, TOTAL *totals) {
    switch (width) { /* a constant width unrolls its loop */
    case 1: WINDOWS(of_width)(rows, windows, places, 1, columns, largest, totals); break;
    case 2: WINDOWS(of_width)(rows, windows, places, 2, columns, largest, totals); break;
    case 3: WINDOWS(of_width)(rows, windows, places, 3, columns, largest, totals); break;
    case 4: WINDOWS(of_width)(rows, windows, places, 4, columns, largest, totals); break;
    default: WINDOWS(of_width)(rows, windows, places, width, columns, largest, totals);
    }
}

#undef IN
#undef SUM
#undef TOTAL
#undef WINDOWS
