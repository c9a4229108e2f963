// Attention of one decode step: each request has one query per head, and reads its keys and values
// from a pool, in which its tokens lie anywhere.
//
// Softmax is computed online, block by block (Milakov and Gimelshein 2018, arXiv:1805.02867): with m
// the largest score so far, l the sum of exp(score - m) and r that sum weighted by values, a larger
// m' shrinks l and r by exp(m - m').

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace {

// Rows that are gone through at once: enough independent sums to keep the processor busy.
constexpr int kRows = 4;

struct Call {
    const float* query;           // [batch, heads, head_dim]
    const float* keys;            // [slots, kv_heads, head_dim]
    const float* values;          // [slots, kv_heads, head_dim]
    const std::int32_t* slots;    // [rows, longest sequence]: where each token lies in the pool
    const std::int64_t* rows;     // [batch]: each request's row of slots
    const std::int64_t* lengths;  // [batch]: tokens of each request
    float* output;                // [batch, heads, head_dim]
    std::int64_t batch, heads, kv_heads, head_dim;
    // Of the dimensions before the last one, in elements; the last one's is 1.
    std::int64_t query_stride[2], key_stride[2], value_stride[2], slots_stride, output_stride[2];
    float scaling;
};

// What the heads of one key-value head have come to.
struct Running {
    std::vector<float> query;   // [group, head_dim], scaled
    std::vector<float> result;  // [group, head_dim], not yet divided by the total
    std::vector<float> top;     // [group]: the largest score
    std::vector<float> total;   // [group]: the sum of exp(score - top)

    Running(std::int64_t group, std::int64_t head_dim)
        : query(group * head_dim), result(group * head_dim), top(group), total(group) {}
};

void dot_rows(const float* query, const float* const* rows, std::int64_t n, float* scores) {
    const float *a = rows[0], *b = rows[1], *c = rows[2], *d = rows[3];
    float sum_a = 0, sum_b = 0, sum_c = 0, sum_d = 0;
#pragma omp simd reduction(+ : sum_a, sum_b, sum_c, sum_d)
    for (std::int64_t i = 0; i < n; ++i) {
        sum_a += query[i] * a[i];
        sum_b += query[i] * b[i];
        sum_c += query[i] * c[i];
        sum_d += query[i] * d[i];
    }
    scores[0] = sum_a;
    scores[1] = sum_b;
    scores[2] = sum_c;
    scores[3] = sum_d;
}

void add_rows(const float* weights, const float* const* rows, std::int64_t n, float* result) {
    const float *a = rows[0], *b = rows[1], *c = rows[2], *d = rows[3];
    const float of_a = weights[0], of_b = weights[1], of_c = weights[2], of_d = weights[3];
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
        result[i] += (of_a * a[i] + of_b * b[i]) + (of_c * c[i] + of_d * d[i]);
    }
}

// One head goes through `count` tokens, whose rows are filled up to a multiple of kRows.
template <int kBlock>
void add_block(const float* const* keys, const float* const* values, int count,
               std::int64_t head_dim, const float* query, float* result, float& top,
               float& total) {
    float weights[kBlock];
    for (int t = 0; t < count; t += kRows) {
        dot_rows(query, keys + t, head_dim, weights + t);
    }
    const float before = top;
    top = std::max(top, *std::max_element(weights, weights + count));
    float sum = 0;
    for (int t = 0; t < count; ++t) {
        weights[t] = std::exp(weights[t] - top);
        sum += weights[t];
    }
    for (int t = count; t % kRows != 0; ++t) {
        weights[t] = 0;
    }
    const float shrink = std::exp(before - top);
    total = total * shrink + sum;
#pragma omp simd
    for (std::int64_t i = 0; i < head_dim; ++i) {
        result[i] *= shrink;
    }
    for (int t = 0; t < count; t += kRows) {
        add_rows(weights + t, values + t, head_dim, result);
    }
}

template <int kBlock>
void attend(const Call& call, std::int64_t request, std::int64_t kv_head, Running& running) {
    static_assert(kBlock % kRows == 0, "rows of a block are filled up to a multiple of kRows");
    const std::int64_t head_dim = call.head_dim, group = call.heads / call.kv_heads;
    const std::int64_t length = call.lengths[request], head = kv_head * group;
    const std::int32_t* slots = call.slots + call.rows[request] * call.slots_stride;
    const float* query =
        call.query + request * call.query_stride[0] + head * call.query_stride[1];
    float* output = call.output + request * call.output_stride[0] + head * call.output_stride[1];

    for (std::int64_t h = 0; h < group; ++h) {
        for (std::int64_t i = 0; i < head_dim; ++i) {
            running.query[h * head_dim + i] = query[h * call.query_stride[1] + i] * call.scaling;
        }
    }
    std::fill(running.result.begin(), running.result.end(), 0.0f);
    std::fill(running.top.begin(), running.top.end(), -std::numeric_limits<float>::infinity());
    std::fill(running.total.begin(), running.total.end(), 0.0f);

    const float *keys[kBlock], *values[kBlock];
    for (std::int64_t start = 0; start < length; start += kBlock) {
        const int count = static_cast<int>(std::min<std::int64_t>(kBlock, length - start));
        for (int t = 0; t < count; ++t) {
            const std::int64_t slot = slots[start + t];
            keys[t] = call.keys + slot * call.key_stride[0] + kv_head * call.key_stride[1];
            values[t] = call.values + slot * call.value_stride[0] + kv_head * call.value_stride[1];
        }
        for (int t = count; t % kRows != 0; ++t) {
            keys[t] = keys[count - 1];
            values[t] = values[count - 1];
        }
        // The block's rows are still in the cache for the second head of the group.
        for (std::int64_t h = 0; h < group; ++h) {
            add_block<kBlock>(keys, values, count, head_dim, &running.query[h * head_dim],
                              &running.result[h * head_dim], running.top[h], running.total[h]);
        }
    }
    for (std::int64_t h = 0; h < group; ++h) {
        const float share = 1.0f / running.total[h];
        for (std::int64_t i = 0; i < head_dim; ++i) {
            output[h * call.output_stride[1] + i] = running.result[h * head_dim + i] * share;
        }
    }
}

template <int kBlock>
void run(const Call& call, int threads) {
    const std::int64_t pairs = call.batch * call.kv_heads, group = call.heads / call.kv_heads;
    if (threads == 1) {
        Running running(group, call.head_dim);
        for (std::int64_t pair = 0; pair < pairs; ++pair) {
            attend<kBlock>(call, pair / call.kv_heads, pair % call.kv_heads, running);
        }
        return;
    }
#pragma omp parallel num_threads(threads)
    {
        Running running(group, call.head_dim);
#pragma omp for
        for (std::int64_t pair = 0; pair < pairs; ++pair) {
            attend<kBlock>(call, pair / call.kv_heads, pair % call.kv_heads, running);
        }
    }
}

}  // namespace

// Returns 0, or 1 for a block size that was not compiled.
extern "C" int decode_attention(
    const float* query, const float* keys, const float* values, const std::int32_t* slots,
    const std::int64_t* rows, const std::int64_t* lengths, float* output, std::int64_t batch,
    std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim,
    std::int64_t query_of_request, std::int64_t query_of_head, std::int64_t key_of_slot,
    std::int64_t key_of_head, std::int64_t value_of_slot, std::int64_t value_of_head,
    std::int64_t slots_of_row, std::int64_t output_of_request, std::int64_t output_of_head,
    float scaling, int block, int threads) {
    const Call call = {query,
                       keys,
                       values,
                       slots,
                       rows,
                       lengths,
                       output,
                       batch,
                       heads,
                       kv_heads,
                       head_dim,
                       {query_of_request, query_of_head},
                       {key_of_slot, key_of_head},
                       {value_of_slot, value_of_head},
                       slots_of_row,
                       {output_of_request, output_of_head},
                       scaling};
    switch (block) {
        case 16: run<16>(call, threads); return 0;
        case 32: run<32>(call, threads); return 0;
        case 64: run<64>(call, threads); return 0;
        case 128: run<128>(call, threads); return 0;
        default: return 1;
    }
}
