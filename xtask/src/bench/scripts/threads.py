# Three threads compute with integers, and fill dictionaries.
import threading

def work(number, sums):
    total, seen = 0, {}
    for i in range(300000):
        total = (total * 31 + i * number) % 1000003
        seen[total % 1009] = i
    sums.append(total + len(seen))

sums = []
threads = [threading.Thread(target=work, args=(n, sums)) for n in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sorted(sums))
