/* SPDX-License-Identifier: Apache-2.0 */
/* test_nn_file.c - modules come back from files as they were; what is not such a file is refused and changes
 * nothing. */
#include <weft/weft.h>

#include "children.h"
#include "make.h"
#include "tensors.h"
#include "unit.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[] = "weft-test-nn-file-XXXXXX";

static weft_module *small(uint64_t seed)
{
    weft_module *parts[] = {
        conv2d_create(&(weft_conv2d_layer){.in_channels = 1, .out_channels = 2, .kernel = {3, 3}, .seed = seed}, NULL),
        batch_norm2d_create(2, 0, 0, NULL)};
    return sequential_create(parts, 2, NULL);
}

static bool is_killed; /* in a child that is to be killed while it saves, when it has written the file */

static bool same(weft_module *a, weft_module *b)
{
    weft_tensors x = weft_module_parameters(a), y = weft_module_parameters(b);
    for (size_t i = 0; i < x.count; i++)
        if (memcmp(weft_tensor_data(x.items[i]), weft_tensor_data(y.items[i]), weft_tensor_nbytes(x.items[i])) != 0)
            return false;
    return true;
}

static void file_round_trip(void **state)
{
    weft_module *a = small(1), *b = small(2);
    weft_tensor_fill(weft_module_find(a, "1.num_batches_tracked"), 7);
    assert_false(same(a, b));
    assert_int_equal(weft_module_save(a, path, NULL), WEFT_OK);
    assert_int_equal(weft_module_load(b, path, NULL), WEFT_OK);
    assert_true(same(a, b));
    assert_int_equal(weft_tensor_get_i64(weft_module_find(b, "1.num_batches_tracked"), 0), 7);
    weft_module_unref(a);
    weft_module_unref(b);
}

static size_t slurp(unsigned char *bytes, size_t size)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size = fread(bytes, 1, size, file);
    fclose(file);
    return size;
}

static void spill(const unsigned char *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

static void file_any_damage_is_refused(void **state)
{
    unsigned char bytes[4096];
    weft_module *a = small(1), *b = small(2), *as_it_was = small(2);
    assert_int_equal(weft_module_save(a, path, NULL), WEFT_OK);
    size_t size = slurp(bytes, sizeof(bytes));
    for (size_t i = 0; i < size; i++) {
        bytes[i] ^= 0x41;
        spill(bytes, size);
        if (weft_module_load(b, path, NULL) == WEFT_OK) { /* a text that says nothing of the tensors */
            assert_true(same(a, b));
            weft_module_unref(b);
            b = small(2);
        }
        bytes[i] ^= 0x41;
        spill(bytes, i);
        assert_int_equal(weft_module_load(b, path, NULL), WEFT_ERR_FORMAT);
    }
    bytes[size] = 0;
    spill(bytes, size + 1);
    assert_int_equal(weft_module_load(b, path, NULL), WEFT_ERR_FORMAT);
    assert_true(same(b, as_it_was));
    weft_module_unref(a);
    weft_module_unref(b);
    weft_module_unref(as_it_was);
}

static void file_of_another_module_is_refused(void **state)
{
    weft_module *a = small(1), *other = linear_create(3, 4, false, 1, NULL);
    weft_error *error = NULL;
    assert_int_equal(weft_module_save(a, path, NULL), WEFT_OK);
    assert_int_equal(weft_module_load(other, path, &error), WEFT_ERR_SHAPE);
    assert_non_null(
        strstr(weft_error_message(error), "which the module does not have: it holds 7 tensors, the module has 2"));
    weft_error_unref(error);
    weft_module_unref(a);
    weft_module_unref(other);
}

/* Saves the first, and loads it into the second; drops both. */
static void assert_refused(weft_module *saved, weft_module *loaded, weft_status status, const char *text)
{
    weft_error *error = NULL;
    assert_int_equal(weft_module_save(saved, path, NULL), WEFT_OK);
    assert_int_equal(weft_module_load(loaded, path, &error), status);
    assert_non_null(strstr(weft_error_message(error), text));
    weft_error_unref(error);
    weft_module_unref(saved);
    weft_module_unref(loaded);
}

static weft_module *linear(int in, int out, weft_dtype dtype)
{
    weft_module *m = linear_create(in, out, false, 1, NULL);
    assert_int_equal(weft_module_to(m, dtype), WEFT_OK);
    return m;
}

static weft_tensor *identity(weft_tape *t, weft_module *self, weft_tensor *x)
{
    return x;
}

static const weft_module_type identity_type = {.name = "Identity", .forward = identity};

/* The first parts of a small module, and behind them one with a buffer of that name, if there is one. */
static weft_module *first_parts(size_t count, const char *buffer)
{
    weft_module *parts[3], *whole = small(1);
    for (size_t i = 0; i < count; i++)
        parts[i] = weft_module_ref(weft_module_child(whole, i));
    weft_module_unref(whole);
    if (buffer) {
        parts[count] = module_create(&identity_type, NULL, NULL);
        weft_module_add_buffer(parts[count++], buffer, tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32));
    }
    return sequential_create(parts, count, NULL);
}

static void file_of_a_module_nearly_the_same_is_refused(void **state)
{
    weft_module *inner = linear(4, 3, WEFT_DTYPE_FLOAT32);
    assert_refused(linear(4, 3, WEFT_DTYPE_FLOAT32), sequential_create(&inner, 1, NULL), WEFT_ERR_SHAPE,
                   "holds \"weight\", which the module does not have");
    assert_refused(linear(4, 3, WEFT_DTYPE_FLOAT32), linear(4, 3, WEFT_DTYPE_FLOAT64), WEFT_ERR_TYPE,
                   "the module's is float64");
    assert_refused(linear(3, 4, WEFT_DTYPE_FLOAT32), linear(4, 3, WEFT_DTYPE_FLOAT32), WEFT_ERR_SHAPE,
                   "weight is [4, 3], the module's is [3, 4]");
    assert_refused(linear(4, 3, WEFT_DTYPE_FLOAT32), linear(4, 3, WEFT_DTYPE_FLOAT32), WEFT_OK, "");
    /* Fewer and more tensors: the one that is too many, or lacks. */
    assert_refused(small(1), first_parts(1, NULL), WEFT_ERR_SHAPE,
                   "which the module does not have: it holds 7 tensors, the module has 2");
    assert_refused(first_parts(1, NULL), small(1), WEFT_ERR_SHAPE,
                   "does not hold \"1.weight\", which the module has: it holds 2 tensors, the module has 7");
    assert_refused(first_parts(2, "extra"), small(1), WEFT_ERR_SHAPE,
                   "holds \"2.extra\", which the module does not have");
    assert_refused(small(1), first_parts(2, "extra"), WEFT_ERR_SHAPE,
                   "does not hold \"2.extra\", which the module has");
}

/* A child that stands twice: its tensors are in the file once, and may be there twice if they are the same. */
static void file_of_a_child_that_stands_twice(void **state)
{
    weft_module *x = linear_create(2, 2, true, 1, NULL), *y = linear_create(2, 2, true, 2, NULL);
    weft_module *twice = sequential_create((weft_module *[]){x, weft_module_ref(x)}, 2, NULL);
    weft_module *apart = sequential_create((weft_module *[]){linear_create(2, 2, true, 3, NULL), y}, 2, NULL);
    weft_error *error = NULL;
    assert_int_equal(weft_module_save(twice, path, NULL), WEFT_OK);
    assert_int_equal(weft_module_load(twice, path, NULL), WEFT_OK);
    assert_int_equal(weft_module_save(apart, path, NULL), WEFT_OK);
    assert_int_equal(weft_module_load(twice, path, &error), WEFT_ERR_SHAPE);
    assert_non_null(strstr(weft_error_message(error), "1.weight differs"));
    weft_error_unref(error);
    assert_int_equal(weft_tensor_assign(weft_module_find(apart, "0.weight"), weft_module_find(apart, "1.weight")),
                     WEFT_OK);
    assert_int_equal(weft_module_save(apart, path, NULL), WEFT_OK);
    assert_int_equal(weft_module_load(twice, path, NULL), WEFT_OK);
    assert_memory_equal(weft_tensor_data(weft_module_find(twice, "1.weight")),
                        weft_tensor_data(weft_module_find(apart, "0.weight")), 16);
    weft_module_unref(twice);
    weft_module_unref(apart);
}

static void file_missing_or_unwritable(void **state)
{
    weft_module *a = small(1);
    weft_error *error = NULL;
    assert_int_equal(weft_module_load(a, "no-such-folder/no-such-file", NULL), WEFT_ERR_NOT_FOUND);
    assert_int_equal(weft_module_load(a, ".", NULL), WEFT_ERR_IO);
    assert_int_equal(weft_module_save(a, "no-such-folder/file", &error), WEFT_ERR_IO);
    assert_non_null(error);
    weft_error_unref(error);
    weft_module_unref(a);
}

/* ---- What is there already -------------------------------------------------------------------------------------- */

static char folder[] = "weft-test-nn-folder-XXXXXX";

static int enter_folder(void **state)
{
    return mkdtemp(folder) && chdir(folder) == 0 ? 0 : -1;
}

static int count_files(void)
{
    int files = 0;
    DIR *here = opendir(".");
    assert_non_null(here);
    for (struct dirent *entry; (entry = readdir(here));)
        files += entry->d_name[0] != '.';
    closedir(here);
    return files;
}

static int leave_folder(void **state)
{
    const char *const made[] = {"new", "old", "link", "pipe", "nothing", "small"};
    for (size_t i = 0; i < sizeof(made) / sizeof(*made); i++)
        unlink(made[i]);
    int left = count_files();
    if (chdir("..") != 0 || rmdir(folder) != 0)
        return -1;
    strcpy(folder, "weft-test-nn-folder-XXXXXX");
    return left;
}

static mode_t mode_of(const char *name)
{
    struct stat found;
    assert_int_equal(lstat(name, &found), 0);
    return found.st_mode;
}

static void assert_saved(const char *name, weft_module *a)
{
    weft_module *b = small(9);
    assert_int_equal(weft_module_load(b, name, NULL), WEFT_OK);
    assert_true(same(a, b));
    weft_module_unref(b);
}

static void file_has_the_mode_of_the_old_one_or_the_umask(void **state)
{
    weft_module *a = small(1), *b = small(2);
    mode_t before = umask(027);
    assert_int_equal(weft_module_save(a, "new", NULL), WEFT_OK);
    umask(before);
    assert_int_equal(mode_of("new"), S_IFREG | 0640);
    assert_int_equal(chmod("new", 0604), 0);
    assert_int_equal(weft_module_save(b, "new", NULL), WEFT_OK);
    assert_int_equal(mode_of("new"), S_IFREG | 0604);
    assert_saved("new", b);
    assert_int_equal(count_files(), 1);
    weft_module_unref(a);
    weft_module_unref(b);
}

static void file_behind_a_link_is_replaced(void **state)
{
    weft_module *a = small(1), *b = small(2);
    assert_int_equal(weft_module_save(b, "old", NULL), WEFT_OK);
    assert_int_equal(symlink("old", "link"), 0);
    assert_int_equal(weft_module_save(a, "link", NULL), WEFT_OK);
    assert_true(S_ISLNK(mode_of("link")));
    assert_saved("old", a);
    assert_int_equal(unlink("link"), 0);
    assert_int_equal(symlink("nothing", "link"), 0);
    assert_int_equal(weft_module_save(b, "link", NULL), WEFT_OK);
    assert_true(S_ISLNK(mode_of("link")));
    assert_saved("nothing", b);
    assert_int_equal(count_files(), 3);
    weft_module_unref(a);
    weft_module_unref(b);
}

static void *load_from_pipe(void *arg)
{
    return weft_module_load(arg, "pipe", NULL) == WEFT_OK ? arg : NULL;
}

static void file_that_is_a_pipe_is_written_to(void **state)
{
    weft_module *a = small(1), *b = small(2);
    pthread_t reader;
    void *loaded;
    assert_int_equal(mkfifo("pipe", 0600), 0);
    assert_int_equal(pthread_create(&reader, NULL, load_from_pipe, b), 0);
    assert_int_equal(weft_module_save(a, "pipe", NULL), WEFT_OK);
    assert_int_equal(pthread_join(reader, &loaded), 0);
    assert_ptr_equal(loaded, b);
    assert_true(same(a, b));
    assert_true(S_ISFIFO(mode_of("pipe")));
    assert_int_equal(count_files(), 1);
    weft_module_unref(a);
    weft_module_unref(b);
}

static void file_that_cannot_be_finished_leaves_the_old_one(void **state)
{
    weft_module *a = small(1), *b = small(2);
    weft_error *error = NULL;
    struct rlimit whole, little;
    assert_int_equal(weft_module_save(a, "small", NULL), WEFT_OK);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &whole), 0);
    little = (struct rlimit){.rlim_cur = 100, .rlim_max = whole.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    weft_status status = weft_module_save(b, "small", &error);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &whole), 0);
    assert_int_equal(status, WEFT_ERR_IO);
    assert_non_null(strstr(weft_error_message(error), "\"small\""));
    assert_saved("small", a);
    assert_int_equal(count_files(), 1);
    weft_error_unref(error);
    weft_module_unref(a);
    weft_module_unref(b);
}

/* ---- Temporaries of saves that were killed ----------------------------------------------------------------------- */

/* Saves in a child, which is killed when it has written the temporary. Gives the child's id; the temporary stays. */
static pid_t killed_while_it_saves(const char *name)
{
    weft_module *module = small(1);
    child saver = child_fork("saver");
    if (!saver.pid) {
        is_killed = true; /* __wrap_fsync says that the temporary is written, and waits */
        (void)!weft_module_save(module, name, NULL);
        _exit(1);
    }
    child_hear(&saver, 'w');
    pid_t pid = saver.pid;
    child_kill(&saver);
    weft_module_unref(module);
    return pid;
}

static void temporary_name(char *out, size_t room, const char *name, const char *host, long pid)
{
    char own[256] = "";
    assert_int_equal(gethostname(own, sizeof(own) - 1), 0);
    snprintf(out, room, "%s.weft-%s-%ld-0", name, host ? host : own, pid);
}

static void file_of_a_killed_save_is_removed_by_the_next(void **state)
{
    weft_module *a = small(1);
    char left[512];
    pid_t first = killed_while_it_saves("new"), second = killed_while_it_saves("new");
    temporary_name(left, sizeof(left), "new", NULL, first);
    assert_int_equal(access(left, F_OK), -1); /* gone by the second save */
    temporary_name(left, sizeof(left), "new", NULL, second);
    assert_int_equal(access(left, F_OK), 0);
    assert_int_equal(weft_module_save(a, "other", NULL), WEFT_OK);
    assert_int_equal(access(left, F_OK), 0); /* another name's stays */
    assert_int_equal(unlink("other"), 0);
    assert_int_equal(weft_module_save(a, "new", NULL), WEFT_OK);
    assert_saved("new", a);
    assert_int_equal(count_files(), 1);
    weft_module_unref(a);
}

static void touch(const char *name)
{
    int fd = open(name, O_WRONLY | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0);
    close(fd);
}

/* Of a process that lives, of another host, and names that only look like it. */
static void files_that_may_be_in_use_stay(void **state)
{
    weft_module *a = small(1);
    char names[5][512];
    long gone = killed_while_it_saves("gone");
    temporary_name(names[0], sizeof(names[0]), "new", NULL, 1);
    temporary_name(names[1], sizeof(names[1]), "new", "another-host", gone);
    temporary_name(names[2], sizeof(names[2]), "new2", NULL, gone);
    temporary_name(names[3], sizeof(names[3]), "new", NULL, gone);
    strcat(names[3], "x");
    snprintf(names[4], sizeof(names[4]), "new.%ld.0", gone);
    for (int i = 0; i < 5; i++)
        touch(names[i]);
    assert_int_equal(weft_module_save(a, "new", NULL), WEFT_OK);
    for (int i = 0; i < 5; i++)
        assert_int_equal(unlink(names[i]), 0);
    assert_int_equal(weft_module_save(a, "gone", NULL), WEFT_OK);
    assert_int_equal(unlink("gone"), 0);
    assert_int_equal(count_files(), 1);
    weft_module_unref(a);
}

/* A container's processes have the same id again and again. A temporary of this id that nobody writes to is removed. */
static void file_under_the_same_process_id_is_removed(void **state)
{
    weft_module *a = small(1);
    char left[512];
    temporary_name(left, sizeof(left), "new", NULL, getpid());
    touch(left);
    assert_int_equal(weft_module_save(a, "new", NULL), WEFT_OK);
    assert_int_equal(count_files(), 1);
    weft_module_unref(a);
}

enum { WRITERS = 4, SAVES = 50 };

static void *save_often(void *arg)
{
    for (int i = 0; i < SAVES; i++)
        if (weft_module_save(arg, "new", NULL) != WEFT_OK)
            return NULL;
    return arg;
}

/* No thread takes another's temporary for one that was left. */
static void file_is_saved_by_several_threads(void **state)
{
    weft_module *a = small(1);
    pthread_t writers[WRITERS];
    for (int i = 0; i < WRITERS; i++)
        assert_int_equal(pthread_create(&writers[i], NULL, save_often, a), 0);
    for (int i = 0; i < WRITERS; i++) {
        void *saved;
        assert_int_equal(pthread_join(writers[i], &saved), 0);
        assert_ptr_equal(saved, a);
    }
    assert_saved("new", a);
    assert_int_equal(count_files(), 1);
    weft_module_unref(a);
}

/* As long as the file system takes: the temporary's is cut. */
static void file_with_a_long_name_is_saved(void **state)
{
    weft_module *a = small(1);
    char name[256];
    memset(name, 'n', 255);
    name[255] = '\0';
    assert_int_equal(weft_module_save(a, name, NULL), WEFT_OK);
    assert_saved(name, a);
    (void)killed_while_it_saves(name);
    assert_int_equal(count_files(), 2);
    assert_int_equal(weft_module_save(a, name, NULL), WEFT_OK);
    assert_int_equal(unlink(name), 0);
    assert_int_equal(count_files(), 0);
    weft_module_unref(a);
}

static void file_that_is_a_folder_is_refused(void **state)
{
    weft_module *a = small(1);
    assert_int_equal(weft_module_save(a, ".", NULL), WEFT_ERR_IO);
    assert_int_equal(count_files(), 0);
    weft_module_unref(a);
}

/* ---- What is asked of the disk, in order ---------------------------------------------------------------------- */

static char steps[16]; /* F: a file synced, R: renamed, D: a folder synced */
static pthread_mutex_t steps_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic ino_t synced_folder;
static int folder_trouble; /* an errno value: syncing folders fails */

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);

static void step(char which)
{
    pthread_mutex_lock(&steps_lock);
    size_t count = strlen(steps);
    if (count + 1 < sizeof(steps))
        steps[count] = which;
    pthread_mutex_unlock(&steps_lock);
}

int __wrap_fsync(int fd)
{
    struct stat found;
    bool is_folder = fstat(fd, &found) == 0 && S_ISDIR(found.st_mode);
    if (is_killed) {
        child_say('w');
        pause();
    }
    step(is_folder ? 'D' : 'F');
    if (!is_folder)
        return __real_fsync(fd);
    synced_folder = found.st_ino;
    errno = folder_trouble;
    return folder_trouble ? -1 : __real_fsync(fd);
}

int __wrap_rename(const char *from, const char *to)
{
    step('R');
    return __real_rename(from, to);
}

static void save_and_expect(weft_module *module, const char *name, weft_status wanted)
{
    memset(steps, 0, sizeof(steps));
    assert_int_equal(weft_module_save(module, name, NULL), wanted);
    assert_string_equal(steps, "FRD");
}

static ino_t folder_of(const char *name)
{
    struct stat found;
    assert_int_equal(stat(name, &found), 0);
    return found.st_ino;
}

static void file_and_then_its_folder_are_synced(void **state)
{
    weft_module *a = small(1), *b = small(2);
    assert_int_equal(mkdir("other", 0700), 0);
    assert_int_equal(symlink("other/old", "link"), 0);
    save_and_expect(a, "new", WEFT_OK);
    assert_true(synced_folder == folder_of("."));
    save_and_expect(a, "other/old", WEFT_OK);
    assert_true(synced_folder == folder_of("other"));
    save_and_expect(b, "link", WEFT_OK); /* the folder of what it leads to */
    assert_true(synced_folder == folder_of("other"));
    folder_trouble = EIO;
    save_and_expect(b, "new", WEFT_ERR_IO);
    assert_saved("new", b);
    folder_trouble = EINVAL; /* a file system that has no such thing */
    save_and_expect(a, "new", WEFT_OK);
    folder_trouble = 0;
    assert_saved("other/old", b);
    assert_int_equal(unlink("other/old"), 0);
    assert_int_equal(rmdir("other"), 0);
    weft_module_unref(a);
    weft_module_unref(b);
}

static int make_file(void **state)
{
    int fd = mkstemp(path);
    return fd < 0 ? 1 : close(fd);
}

static int remove_file(void **state)
{
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(file_round_trip),
        cmocka_unit_test(file_any_damage_is_refused),
        cmocka_unit_test(file_of_another_module_is_refused),
        cmocka_unit_test(file_of_a_module_nearly_the_same_is_refused),
        cmocka_unit_test(file_of_a_child_that_stands_twice),
        cmocka_unit_test(file_missing_or_unwritable),
        cmocka_unit_test_setup_teardown(file_has_the_mode_of_the_old_one_or_the_umask, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(file_behind_a_link_is_replaced, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(file_that_is_a_pipe_is_written_to, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(file_that_cannot_be_finished_leaves_the_old_one, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(file_of_a_killed_save_is_removed_by_the_next, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(files_that_may_be_in_use_stay, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(file_under_the_same_process_id_is_removed, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(file_is_saved_by_several_threads, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(file_with_a_long_name_is_saved, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(file_that_is_a_folder_is_refused, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(file_and_then_its_folder_are_synced, enter_folder, leave_folder),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
