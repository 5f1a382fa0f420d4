// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// searchPath is the PATH of images with several programs.
const searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// runArchive writes an archive with images of the same files. Their only layer is in it once.
func runArchive(args []string) error {
	var folder, output string
	flags := flag.NewFlagSet("archive", flag.ContinueOnError)
	flags.StringVar(&folder, "folder", "", "folder whose files and links the images have")
	flags.StringVar(&output, "output", "", "archive to write")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if folder == "" || output == "" || flags.NArg() == 0 {
		return errors.New("-folder, -output and an image, NAME:TAG or NAME:TAG=PROGRAM, are mandatory")
	}
	files, err := folderLayer(folder)
	if err != nil {
		return fmt.Errorf("pack %s: %w", folder, err)
	}
	images := map[name.Tag]v1.Image{}
	for _, argument := range flags.Args() {
		reference, program, _ := strings.Cut(argument, "=")
		tag, err := name.NewTag(reference)
		if err != nil {
			return fmt.Errorf("image %q: %w", argument, err)
		}
		if images[tag], err = newImage(files, program); err != nil {
			return fmt.Errorf("image %q: %w", argument, err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(output), 0o755); err != nil {
		return err
	}
	if err := tarball.MultiWriteToFile(output, images); err != nil {
		return fmt.Errorf("write %s: %w", output, err)
	}
	return nil
}

// newImage returns an image with a layer. If program is empty, what runs the image names the program.
func newImage(files v1.Layer, program string) (v1.Image, error) {
	image, err := mutate.AppendLayers(empty.Image, files)
	if err != nil {
		return nil, err
	}
	present, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config := present.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config = v1.Config{Env: []string{searchPath}, WorkingDir: "/"}
	if program != "" {
		config.Config.Entrypoint = []string{program}
	}
	return mutate.ConfigFile(image, config)
}

// folderLayer returns a layer with the files and links of a folder. It is not compressed, because what
// reads the archive is on this machine.
func folderLayer(folder string) (v1.Layer, error) {
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		reader, writer := io.Pipe()
		go func() { writer.CloseWithError(packFolder(folder, writer)) }()
		return reader, nil
	}, tarball.WithCompressionLevel(gzip.NoCompression))
}

// packFolder writes an archive of a folder, in which everything belongs to root and has no time.
func packFolder(folder string, out io.Writer) error {
	writer := tar.NewWriter(out)
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == folder {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		link := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			if link, err = os.Readlink(path); err != nil {
				return err
			}
		}
		header, err := tar.FileInfoHeader(info, link)
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(folder, path)
		if err != nil {
			return err
		}
		header.Name = inside
		if info.IsDir() {
			header.Name += "/"
		}
		header.Uid, header.Gid, header.Uname, header.Gname = 0, 0, "", ""
		header.ModTime, header.AccessTime, header.ChangeTime = time.Unix(0, 0), time.Time{}, time.Time{}
		if err := writer.WriteHeader(header); err != nil || !info.Mode().IsRegular() {
			return err
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		_, err = io.Copy(writer, file)
		return err
	})
	if err != nil {
		return err
	}
	return writer.Close()
}
