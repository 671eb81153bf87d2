/* Becomes the program that its arguments name. */
#include <unistd.h>

int main(int count, char **arguments)
{
	(void)count;
	execvp(arguments[1], arguments + 1);
	return 127;
}
