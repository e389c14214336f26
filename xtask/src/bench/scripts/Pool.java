import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** Eight tasks on four threads fill maps of their own. */
public class Pool {
    static long work(int number) {
        Map<Integer, Long> map = new HashMap<>();
        long sum = 0;
        for (int i = 0; i < 60000; i++) {
            map.merge(i % 1009, (long) i * number, Long::sum);
            sum += map.get(i % 1009) & 255;
        }
        return sum;
    }

    public static void main(String[] arguments) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(4);
        List<Future<Long>> sums = new ArrayList<>();
        for (int task = 0; task < 8; task++) {
            int number = task;
            sums.add(pool.submit(() -> work(number)));
        }
        long total = 0;
        for (Future<Long> sum : sums) total += sum.get();
        pool.shutdown();
        System.out.println(total);
    }
}
