// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package qemu

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// image is what the header of a disk image says.
type image struct {
	format string
	size   int64
}

// readImage returns the format and the virtual size of an image. An image that is not
// qcow2 is raw: the administrator has written it, no guest.
func readImage(path string) (image, error) {
	file, err := os.Open(path)
	if err != nil {
		return image{}, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return image{}, err
	}
	header := make([]byte, 32)
	_, err = io.ReadFull(file, header)
	if err == nil && strings.HasPrefix(string(header), "QFI\xfb") {
		return image{format: "qcow2", size: int64(binary.BigEndian.Uint64(header[24:]))}, nil
	}
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return image{}, fmt.Errorf("read image %s: %w", path, err)
	}
	return image{format: "raw", size: info.Size()}, nil
}

// createDisk creates the disk of a machine above its image.
// The program has the lock too: if this process is killed, the folder is not emptied before
// the program has ended.
func (a *API) createDisk(ctx context.Context, f folder, lock *os.File, b Boot) error {
	base, err := readImage(b.Image)
	if err != nil {
		return err
	}
	size := base.size
	if b.DiskSize != "" {
		wanted, err := parseSize(b.DiskSize)
		if err != nil {
			return fmt.Errorf("disk_size %s: %w", b.DiskSize, err)
		}
		size = max(size, wanted.Value())
	}
	cmd := exec.CommandContext(ctx, a.options.ImageTool, "create", "-q", "-f", "qcow2",
		"-F", base.format, "-b", b.Image, diskFile, strconv.FormatInt(size, 10))
	cmd.Dir, cmd.Env, cmd.ExtraFiles = f.path, environment(), []*os.File{lock}
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("create the disk of instance %s: %w: %s", f.id, err, strings.TrimSpace(string(output)))
	}
	return nil
}

// environment returns that of the programs. The server's own has secrets.
func environment() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
}
